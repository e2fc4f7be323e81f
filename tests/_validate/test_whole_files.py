"""Files that are there whole, whoever writes them at the same time."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from jspec._validate.whole_files import writing, written_whole


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


def test_a_folder_is_whole_or_absent_too(tmp_path):
    def write(folder, content):
        with written_whole(folder) as part:
            part.mkdir()
            (part / "first").write_text("whole")
            (part / "second").write_text(content)

    write(tmp_path / "new", "whole")
    with pytest.raises(TypeError):
        write(tmp_path / "half", None)
    assert [one.name for one in tmp_path.iterdir()] == ["new"]


def test_what_a_full_disk_refuses_has_the_name_of_the_file(tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sentence = r"/page could not be written \(No space left on device\); make room, or name another"
    for write in (written_whole, writing):
        with pytest.raises(OSError, match=sentence), write(tmp_path / "page"):
            full()
    assert not list(tmp_path.iterdir())
