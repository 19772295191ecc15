"""JSON Schemas as clients send them: what of them the grammar library can enforce, and the check of what it cannot."""
