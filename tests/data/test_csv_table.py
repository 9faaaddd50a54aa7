"""Tables as spreadsheets save them, and what is told where they cannot be read."""

import pytest

from fedretina.data.manifest import COLUMNS, csv_lines, csv_rows, read_manifest
from fedretina.data.readers.tables import read_table
from fedretina.errors import DataError
from fedretina.settings.scheme import preset

ROWS = [("a ü.png", "0.0", "Müller, A", "train"), ("d;b.png", "4", 'p "2"', "val"), ("c.png", "1,0", "p3", "test")]


def saved(tmp_path, separator=",", encoding="utf-8", titles=COLUMNS, end="\r\n"):
    """What a spreadsheet writes: quotation marks where a cell needs them, and an empty row at the end."""
    lines = [separator.join(titles)]
    for row in ROWS:
        cells = ['"' + cell.replace('"', '""') + '"' if {separator, '"'} & set(cell) else cell for cell in row]
        lines.append(separator.join(cells))
    lines.append(separator * 3)
    path = tmp_path / "manifest.csv"
    path.write_bytes((end.join(lines) + end).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_spreadsheets_save_is_one_manifest(tmp_path, separator, encoding, end):
    found = read_manifest(
        saved(tmp_path, separator, encoding, (" File", "LABEL ", "patient", "Split"), end), preset("icdr5")
    )
    assert [tuple(record) for record in found.records] == [
        ("a ü.png", 0, "Müller, A", "train"),
        ("d;b.png", 4, 'p "2"', "val"),
        ("c.png", 1, "p3", "test"),
    ]


@pytest.mark.parametrize("said", ["sep=;", "SEP=;", '"sep=;"', "sep=;;;;"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_the_line_that_excel_takes_the_separator_from_is_no_row(tmp_path, said, encoding):
    path = saved(tmp_path, ";", encoding)
    text = path.read_bytes().decode(encoding)
    path.write_bytes(f"{said}\r\n{text}".encode(encoding))
    found = read_manifest(path, preset("icdr5"))
    assert [record.patient for record in found.records] == ["Müller, A", 'p "2"', "p3"]
    assert [line.number for line in csv_lines(path, COLUMNS)[1]] == [2, 3, 4, 5]
    path.write_bytes(f"sep=|\r\n{text}".encode(encoding))
    with pytest.raises(DataError, match=r"first line says that '\|' separates the columns: save it with commas"):
        read_manifest(path, preset("icdr5"))


def test_class_tables_are_read_the_same_way(tmp_path):
    path = saved(tmp_path, "\t", "utf-16", ("FILE", "Label", "x", "y"))
    assert [row.cells["label"] for row in read_table(path, ["file", "label"])] == ["0.0", "4", "1,0"]


def test_the_header_alone_decides_what_separates(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("file;label\na,b,c,d;0\n")
    assert csv_rows(path, ("file", "label")) == [(2, {"file": "a,b,c,d", "label": "0"})]
    path.write_text('"file";"one, two; three"\na;0\n')
    assert csv_lines(path, ("file",))[0] == ";"
    path.write_text("x;y,z\n1\n")  # no known name: a comma
    assert csv_lines(path, ("file",))[0] == ","


def test_numbers_are_those_of_the_lines_where_rows_begin(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('\nfile,patient,note\n\na,p,"two\nlines"\n,,\nb,q\n')
    assert csv_rows(path, ("file", "patient"), ("eye",)) == [
        (4, {"file": "a", "patient": "p", "eye": ""}),
        (7, {"file": "b", "patient": "q", "eye": ""}),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'file,label\na,0\n"b,1\nc,2\nd,3\n', "row 3: a quotation mark is not closed"),
        (b'file,label\na,0\n"b,1\nc,2\n"d",3\n', "row 3: a quotation mark is not closed"),
        (b'file,label\na,0\n"b,1\nc",2\n', "row 3: a quotation mark is not closed"),
        (b'"file,label\na,0\n', "row 1: a quotation mark is not closed"),
        (b"file,label\na,1,0\n", "row 2: it has 3 cells and the header 2: write quotation marks .* a comma"),
        (b"file;label\na;b;0\n", "row 2: .* a semicolon"),
        ("file,label\na,0\nMü,1\n".encode("cp1252"), "line 3: the byte 0xfc is not UTF-8.*Windows-1252.*CSV UTF-8"),
        ("file,label\na,0\n".encode("utf-16-le"), "holds zero bytes"),
        ("file,label\na,0\n".encode("utf-16")[:-1], "is not UTF-16"),
        (b"PK\x03\x04rest", "is a workbook and no CSV"),
        (b"file,File,label\na,b,0\n", "names? .*once each.*keep one file"),
        (b"file,grade\na,0\n", r"found \['file', 'grade'\]: add label\."),
        (b"file:label\na:0\n", "add file, label; separate columns by commas, semicolons or tabs"),
        (b"", "separate columns"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_cure(tmp_path, data, words):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(DataError, match=words):
        csv_rows(tmp_path / "t.csv", ("file", "label"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,share,label\na,0,3,1\n", "row 2: it has 4 cells and the header 3: write quotation marks .* a comma"),
        ("file;label\na;1\nb;c;0\n", "row 3: it has 3 cells .* a semicolon"),
        ("file,Label,label \na,0,1\n", "2 columns have the title 'label': keep one"),
        ("file,label,eye,EYE\na,0,left,right\n", "2 columns have the title 'eye': keep one"),
        ("file,grade\na,0,1\n", "expected the columns 'file' and 'label'"),
    ],
)
def test_class_tables_in_which_a_cell_may_be_under_a_wrong_title(tmp_path, text, words):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_table(path, ["file", "label"], optional=["eye", "pupil|share"])


def test_class_tables_with_titles_twice_that_nobody_reads_and_empty_cells_at_the_end(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('file,label,note,note\na,"1,0",x,y,,\n')
    assert read_table(path, ["file", "label"])[0].cells == {"file": "a", "label": "1,0"}


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        csv_rows(tmp_path / "t.csv", ("file",))
