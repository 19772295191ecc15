"""Calls of tools as families of models write them: one small file for each form."""
