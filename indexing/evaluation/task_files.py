"""Which files a task has: text files, plain or gzipped, and Parquet tables, one file or a folder of parts.

Owns names and endings. Must not know what is in the files.
"""

from collections.abc import Sequence

import pyarrow.fs

PARQUET_ENDINGS = (".parquet", ".pq")
_OTHER_PROGRAMS = ("_", ".")


def is_table(path: str) -> bool:
    """Whether a path names a Parquet table: by its ending, or, with `/` at the end, a folder of parts."""
    return path.endswith((*PARQUET_ENDINGS, "/"))


def find_file(filesystem: pyarrow.fs.FileSystem, folder: str, names: Sequence[str]) -> str:
    """The first of the named files that the folder has.

    names: of text files, which may also have `.gz`; of Parquet tables, which may be folders of parts; and,
        with `/` at the end, of folders of Parquet parts. The result ends as the name does.

    Raises:
        FileNotFoundError: none of them; the message lists what was looked for.
    """
    endings = [("",) if is_table(name) else ("", ".gz") for name in names]
    paths = [
        f"{folder.rstrip('/')}/{name}{ending}"
        for name, some in zip(names, endings, strict=True)
        for ending in some
    ]
    found = filesystem.get_file_info([path.rstrip("/") for path in paths])
    for path, info in zip(paths, found, strict=True):
        is_folder = info.type == pyarrow.fs.FileType.Directory
        is_file = info.type == pyarrow.fs.FileType.File
        if (is_folder and is_table(path)) or (is_file and not path.endswith("/")):
            return path
    raise FileNotFoundError(f"none of these files exists: {', '.join(paths)}")


def has_file(filesystem: pyarrow.fs.FileSystem, folder: str, name: str) -> bool:
    """Whether the folder has the file, as `find_file` looks for it."""
    try:
        find_file(filesystem, folder, [name])
    except FileNotFoundError:
        return False
    return True


def table_parts(filesystem: pyarrow.fs.FileSystem, path: str) -> list[str]:
    """The files of a Parquet table: the file itself, or those directly in the folder, by name.

    Names that begin with _ or . are other programs' own.

    Raises:
        FileNotFoundError: nothing is there, or no Parquet file in the folder.
    """
    path = path.rstrip("/")
    info = filesystem.get_file_info(path)
    if info.type == pyarrow.fs.FileType.File:
        return [path]
    selector = pyarrow.fs.FileSelector(path, allow_not_found=True)
    parts = sorted(
        str(found.path)
        for found in filesystem.get_file_info(selector)
        if found.is_file
        and found.base_name.endswith(PARQUET_ENDINGS)
        and not found.base_name.startswith(_OTHER_PROGRAMS)
    )
    if not parts:
        raise FileNotFoundError(f"there is no Parquet file at '{path}' or in it")
    return parts
