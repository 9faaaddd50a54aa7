import hashlib
import hmac
import stat

import pytest

from fedretina.data.patient_keys import keyed, site_salt
from fedretina.errors import DataError


def test_a_salt_is_drawn_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "salt"
    salt = site_salt(path)
    assert len(salt) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert site_salt(path) == salt
    assert site_salt(tmp_path / "other") != salt


def test_a_key_is_the_keyed_hash_of_purpose_and_name():
    salt = bytes(range(32))
    found = keyed(salt, "patient", "MRN 1")
    assert found == hmac.new(salt, b"patient\x1fMRN 1", hashlib.sha256).hexdigest()[:32]
    others = {keyed(salt, "image", "MRN 1"), keyed(salt, "patient", "MRN 2"), keyed(bytes(32), "patient", "MRN 1")}
    assert len(others | {found}) == 4


def test_a_salt_that_others_may_read(tmp_path):
    site_salt(tmp_path / "salt")
    (tmp_path / "salt").chmod(0o640)
    with pytest.raises(DataError, match="chmod 600"):
        site_salt(tmp_path / "salt")


@pytest.mark.parametrize(
    ("text", "words"), [("no hex", "cannot be used"), ("", "has 0 bytes"), ("abcd", "has 2 bytes")]
)
def test_a_damaged_salt(tmp_path, text, words):
    path = tmp_path / "salt"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(DataError, match=words):
        site_salt(path)


def test_a_salt_that_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match="name another file"):
        site_salt(tmp_path / "missing" / "salt")
