"""What a reader finds in a small tree, in short forms for tests."""

from fedretina.data.import_plan import plan_import
from fedretina.data.readers import reader
from fedretina.data.readers.survey import ImportSettings


def look(name, root, **words):
    return reader(name).survey(root, ImportSettings(**words), root / "out")


def plan(name, root, **words):
    return plan_import(name, root, root / "out", ImportSettings(**words))


def labels(survey):
    return {photograph.file.split("/")[-1]: photograph.label for photograph in survey.photographs}


def reasons(survey):
    return {row.name.split("/")[-1]: row.reason for row in survey.left_out}
