from fedretina.data.check.rules import CODES, EXIT_CODES, KEPT, Findings, findings_table


def test_every_code_says_what_it_means_and_how_to_mend_it():
    for name, code in CODES.items():
        assert code.severity in EXIT_CODES, name
        assert code.meaning.endswith("."), name
        assert code.mend.endswith("."), name
        assert "|" not in code.meaning + code.mend, name


def test_no_case_is_no_finding():
    findings = Findings()
    findings.add("patient_empty", [])
    assert list(findings) == []


def test_examples_are_capped_and_the_total_is_told():
    findings = Findings()
    findings.add("patient_empty", [f"row {at}" for at in range(KEPT + 7)])
    (one,) = findings
    assert (one.count, len(one.where)) == (KEPT + 7, KEPT)
    assert one.record()["count"] == KEPT + 7


def test_the_grave_ones_come_first():
    findings = Findings()
    findings.add("limited", ["x"])
    findings.add("image_dark", ["x"])
    findings.add("split_empty", ["x"])
    findings.add("file_missing", ["x"], severity="error")
    assert [(one.severity, one.code) for one in findings] == [
        ("error", "split_empty"),
        ("error", "file_missing"),
        ("warning", "image_dark"),
        ("note", "limited"),
    ]


def test_the_table_has_a_row_a_code():
    lines = findings_table().splitlines()
    assert len(lines) == 2 + len(CODES)
    assert all(line.count("|") == 5 for line in lines)
