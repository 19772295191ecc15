"""Moves in a GGUF file cost no more than they must."""

from __future__ import annotations

import struct
import tempfile

import pytest

from router.gguf_cursor import Cursor


class Counting(Cursor):
    """Counts the numbers that are read one by one."""

    num_read = 0

    def scalar(self, form: struct.Struct) -> int | float | bool:
        self.num_read += 1
        return super().scalar(form)


@pytest.mark.parametrize(("is_wanted", "items"), [(True, tuple(range(200))), (False, ())])
def test_only_lists_that_are_wanted_are_read_item_by_item(is_wanted: bool, items: tuple[int, ...]) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(struct.pack("<IQ", 0, 200) + bytes(range(200)) + b"\x07\0\0\0")
        file.flush()
        cursor = Counting(file.fileno(), 216)
        assert cursor.array(is_wanted=is_wanted) == (200, items)
        assert cursor.num_read == 2 + len(items)
        assert cursor.u32() == 7
