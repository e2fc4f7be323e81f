"""Files that are there whole, whoever writes them at the same time."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from jspec._validate.whole_files import written_whole


def test_of_threads_that_write_one_file_one_wins(tmp_path):
    file = tmp_path / "file"

    def write(number):
        for _ in range(50):
            with written_whole(file) as part:
                part.write_text(f"{number}" * 1000)
            text = file.read_text()
            assert text == text[0] * 1000

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_killed_writer_leaves_the_file_unchanged(tmp_path):
    file = tmp_path / "file"
    file.write_text("before")

    def write():
        with written_whole(file) as part:
            part.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert [one.read_text() for one in tmp_path.iterdir()] == ["before"]
