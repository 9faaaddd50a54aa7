"""The studies of the papers' tables: rows times seeds, and a page of its own for each paper."""

from __future__ import annotations

from fedretina_papers.fedee_page import write_fedee_page
from fedretina_papers.kinds import Compares, register
from fedretina_papers.oct_page import write_oct_page
from fedretina_papers.page import write_benchmark_page
from fedretina_papers.row_study import of_rows

register("feduaa", of_rows(write_benchmark_page), __file__)
register("oct", of_rows(write_oct_page, Compares(pooled=True)), __file__)
register("fedee", of_rows(write_fedee_page, Compares(side_by_side=True)), __file__)
