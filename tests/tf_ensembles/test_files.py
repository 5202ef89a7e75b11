"""Files appear whole or not at all."""

import pytest

from tf_ensembles import files


def test_a_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "sub" / "table.csv"
    with files.atomic_path(path) as temporary:
        temporary.write_text("old")
        assert not path.exists()
        assert temporary.name == path.name
    with files.atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def fail_half_way():
        with files.atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_a_folder_is_replaced_too(tmp_path):
    for content in ("old", "new"):
        with files.atomic_path(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / content).write_text(content)
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["new"]
