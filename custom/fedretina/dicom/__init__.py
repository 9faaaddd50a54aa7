"""Answers in the forms of a hospital's archive and record: DICOM structured reports and pages, FHIR."""
