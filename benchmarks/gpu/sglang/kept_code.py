"""Blanks the GPU code for other architectures than sm_90 in a shared library, so that it compresses well.

    python3 kept_code.py LIBRARY.so

The file keeps its size, its headers and every sm_90 image; the driver reads only the image that fits the GPU. The
sections ``.nv_fatbin`` hold containers of images: as `cuobjdump` lists them, each with a header that gives its length
and its architecture.
"""

import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

ARCHITECTURE = 90
_CONTAINER = 0xBA55ED50
_ELF_SECTION_TABLE, _ELF_SECTION_COUNTS, _ARCHITECTURE_OFFSET = 0x28, 0x3A, 28


def fatbin_sections(library: mmap.mmap) -> Iterator[tuple[int, int]]:
    """First byte and end of each section with GPU code, from the section table of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", library, _ELF_SECTION_TABLE)
    entry, count, names = struct.unpack_from("<HHH", library, _ELF_SECTION_COUNTS)
    sections = [struct.unpack_from("<IIQQQQ", library, table + i * entry) for i in range(count)]
    first_name = sections[names][4]
    for name, _, _, _, start, size in sections:
        if library[first_name + name : library.find(b"\0", first_name + name)] == b".nv_fatbin":
            yield start, start + size


def images(library: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Architecture, first byte of the code and its end, of each image."""
    while start < end:
        magic, _, head, length = struct.unpack_from("<IHHQ", library, start)
        if magic != _CONTAINER:
            start += 8
            continue
        image, start = start + head, start + head + length
        while image < start:
            _, _, head, length = struct.unpack_from("<HHIQ", library, image)
            (architecture,) = struct.unpack_from("<I", library, image + _ARCHITECTURE_OFFSET)
            yield architecture, image + head, image + head + length
            image += head + length


def main() -> None:
    path = Path(sys.argv[1])
    kept = blanked = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as library:
        for start, end in fatbin_sections(library):
            for architecture, first, last in images(library, start, end):
                if architecture == ARCHITECTURE:
                    kept += last - first
                else:
                    library[first:last] = bytes(last - first)
                    blanked += last - first
    if not kept:
        sys.exit(f"{path} holds no code for sm_{ARCHITECTURE}")
    print(f"{path}: kept {kept >> 20} MiB, blanked {blanked >> 20} MiB")


if __name__ == "__main__":
    main()
