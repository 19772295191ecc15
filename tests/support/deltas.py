"""Deltas as a whole reply has them."""

from __future__ import annotations

from collections.abc import Iterable

from worker.api.formatter import Piece, join_pieces
from worker.chat.deltas import Delta


def join_deltas(deltas: Iterable[Delta]) -> list[Delta]:
    """Return the same answer in as few pieces as possible."""
    return [piece.delta for piece in join_pieces([Piece(delta) for delta in deltas])]
