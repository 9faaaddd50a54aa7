import pytest

from fedretina.data.manifest import SPLITS, UNLABELLED, RawRow, Record, read_manifest, write_manifest
from fedretina.errors import DataError
from fedretina.settings.scheme import preset

GOOD = "file,label,patient,split\na.png,0,p1,train\nd/b.png,4,p2,val\nc.png,mild,p3,test\n"


def manifest(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "manifest.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_reads_rows(tmp_path, encoding):
    read = read_manifest(manifest(tmp_path, GOOD, encoding), preset("icdr5"))
    assert read.records[1] == Record("d/b.png", 4, "p2", "val")
    assert read.of("test") == (Record("c.png", 1, "p3", "test"),)
    assert read.counts() == {"train": [1, 0, 0, 0, 0], "val": [0, 0, 0, 0, 1], "test": [0, 1, 0, 0, 0]}


def test_column_order_extra_columns_and_line_ends_do_not_matter(tmp_path):
    text = "split,age,patient,label,file\r\ntrain,71,p1, 2 ,./x/a.png\r\n\r\n"
    read = read_manifest(manifest(tmp_path, text), preset("icdr5"))
    assert read.records == (Record("x/a.png", 2, "p1", "train"),)


def test_write_then_read(tmp_path):
    rows = [RawRow('a "b", c.png', "3", "Müller, A", "train"), RawRow("b.png", "no_dr", "p", "val")]
    write_manifest(tmp_path / "m.csv", rows)
    read = read_manifest(tmp_path / "m.csv", preset("icdr5"))
    assert [(r.file, r.label, r.patient, r.split) for r in read.records] == [
        ('a "b", c.png', 3, "Müller, A", "train"),
        ("b.png", 0, "p", "val"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["m.csv"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="was not written"):
        write_manifest(tmp_path / "file" / "manifest.csv", [RawRow("a.png", "0", "p", "train")])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("e.png,0,p9,training", "row 5.*'training'"),
        ("e.png,7,p9,train", "row 5.*'7'.*allowed"),
        ("e.png,,p9,test", "row 5.*label is empty.*test"),
        ("e.png,0,,train", "row 5.*patient is empty"),
        ("e.png,0,p1,val", "row 5.*'p1'.*row 2"),
        ("./d/b.png,4,p2,val", "row 5.*'d/b.png'.*row 3"),
        ("../e.png,0,p9,train", "row 5.*image root"),
        ("d/../../e.png,0,p9,train", "row 5.*image root"),
        ("/e.png,0,p9,train", "row 5.*image root"),
        ("C:\\e.png,0,p9,train", "row 5.*image root"),
        ("e\x00.png,0,p9,train", r"manifest\.csv"),
        (",0,p9,train", "row 5.*empty"),
        ("e.png,0", "row 5"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, words):
    with pytest.raises(DataError, match=words):
        read_manifest(manifest(tmp_path, GOOD + row + "\n"), preset("icdr5"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns"),
        ("file,label,patient\na,0,p\n", "split"),
        ("file|label|patient|split\na|0|p|train\n", "commas"),
        ("file,label,patient,split,split\na,0,p,train,val\n", "once"),
        ("file,label,patient,split\n", "no rows"),
        ('file,label,patient,split\n"a,0,p,train\n', "row 2: a quotation mark is not closed"),
    ],
)
def test_a_file_that_is_no_manifest(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        read_manifest(manifest(tmp_path, text), preset("icdr5"))


def test_missing_and_wrong_encoding(tmp_path):
    with pytest.raises(DataError, match="missing"):
        read_manifest(tmp_path / "none.csv", preset("icdr5"))
    path = manifest(tmp_path, GOOD.replace("p1", "Mü"), "latin-1")
    with pytest.raises(DataError, match="UTF-8"):
        read_manifest(path, preset("icdr5"))


def test_a_row_of_train_may_have_no_label(tmp_path):
    read = read_manifest(manifest(tmp_path, GOOD + "u.png,,p8,train\n"), preset("icdr5"))
    labelled = read_manifest(manifest(tmp_path, GOOD), preset("icdr5"))
    assert read.counts() == labelled.counts()
    assert [read.of(split) for split in SPLITS] == [labelled.of(split) for split in SPLITS]
    assert [record.file for record in read.unlabelled()] == ["u.png"]
    assert read.of("pretrain") == (*labelled.of("train"), read.records[-1])
    assert read.records[-1].label == UNLABELLED


def test_without_a_scheme_no_label_is_read(tmp_path):
    read = read_manifest(manifest(tmp_path, GOOD + "e.png,anything,p9,train\n"), None)
    assert {record.label for record in read.records} == {UNLABELLED}
    assert read.counts() == {"train": [], "val": [], "test": []}
    assert read.of("test") == ()


@pytest.mark.attack(
    "an accident", "a patient is spelled P1 in train and p 1 in test", "the site is refused with a sentence"
)
def test_spellings_of_a_patient_are_one_patient(tmp_path):
    more = GOOD + "e.png,1,P 1,train\n"
    for text in (more, "\n".join([GOOD.splitlines()[0], *reversed(more.splitlines()[1:])])):
        read = read_manifest(manifest(tmp_path, text), preset("icdr5"))
        assert {record.patient for record in read.of("train")} == {"P 1"}
    with pytest.raises(DataError, match=r"row 5: patient 'P1' is in test, but as 'p1' in train in row 2.*another name"):
        read_manifest(manifest(tmp_path, GOOD + "e.png,1,P1,test\n"), preset("icdr5"))


BESIDE = """file,label,patient,split,Sex,camera,age_band
a.png,0,p1,train,F,Top Con,70–79
b.png,1,P1,train,,,
c.png,2,p2,val,male,,<40
"""


def test_optional_columns_are_read_where_they_are_named_and_change_nothing_else(tmp_path):
    path = manifest(tmp_path, BESIDE)
    read = read_manifest(path, preset("icdr5"), ("sex", "camera", "age_band"))
    assert read.columns == {
        "sex": {"a.png": "female", "b.png": "", "c.png": "male"},
        "camera": {"a.png": "Top Con", "b.png": "", "c.png": ""},
        "age_band": {"a.png": "from_70", "b.png": "", "c.png": "under_40"},
    }
    assert read_manifest(path, preset("icdr5")).columns == {}
    assert read_manifest(path, preset("icdr5")).digest() == read.digest()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("F,", "x,", "row 2.*sex is 'x': write one of"),
        ("1,P1,train,,", "1,P1,train,m,", "row 3.*the sex of its patient is another one in row 2"),
        ("Top Con", "C" * 41, "row 2.*at most 40 characters"),
        ("<40", "39", "row 4.*age_band is '39'"),
        ("Sex", "gender", "sex"),
    ],
)
def test_a_cell_that_is_none_of_a_column_s_words_is_refused(tmp_path, old, new, words):
    path = manifest(tmp_path, BESIDE.replace(old, new))
    with pytest.raises(DataError, match=words):
        read_manifest(path, preset("icdr5"), ("sex", "camera", "age_band"))


def test_serial_numbers_make_no_subgroups(tmp_path):
    rows = "".join(f"{at}.png,0,p{at},train,SN{at}\n" for at in range(21))
    path = manifest(tmp_path, f"file,label,patient,split,camera\n{rows}")
    with pytest.raises(DataError, match="21 different words, at most 20"):
        read_manifest(path, preset("icdr5"), ("camera",))
