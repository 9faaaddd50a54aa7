"""The report of a run, at a site and at the server: a JSON record, and the page that is rendered from it."""

REPORT_FORMAT = 1
