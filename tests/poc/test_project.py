import yaml
from poc.project import ADMIN, NAME, PROJECT_FILE, SERVER, project, write_project


def test_the_committed_file_is_what_five_sites_at_flares_port_get():
    assert project([f"site-{number}" for number in range(1, 6)], 8002) == yaml.safe_load(PROJECT_FILE.read_text())


def test_other_sites_and_another_port(tmp_path):
    write_project(tmp_path / "new" / "project.yml", ["north", "south-west"], 4711)
    words = yaml.safe_load((tmp_path / "new" / "project.yml").read_text())
    assert words["name"] == NAME
    server, north, south, admin = words["participants"]
    assert (server["name"], server["fed_learn_port"]) == (SERVER, 4711)
    assert [(site["name"], site["type"]) for site in (north, south)] == [("north", "client"), ("south-west", "client")]
    assert (admin["name"], admin["role"]) == (ADMIN, "project_admin")
