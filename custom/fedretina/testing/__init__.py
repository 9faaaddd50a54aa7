"""Checks that people run over parts of their own, as the project runs them over its own."""

from __future__ import annotations

from fedretina.testing.reader import check_reader

__all__ = ["check_reader"]
