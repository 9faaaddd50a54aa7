"""Sentences that several readers say."""

from __future__ import annotations

from fedretina.data.readers.image_folder import ImageFolder


def no_patients() -> str:
    """Each image stands as its own patient."""
    return (
        "the set names no patients: each image is its own, so two eyes of a patient may fall into different splits, "
        "and figures may be too good."
    )


def unlisted(*folders: ImageFolder) -> tuple[str, ...]:
    """Images on disk that no list has named, if there are any; to be asked after all lists are read."""
    count = sum(folder.unused() for folder in folders)
    if not count:
        return ()
    return (f"{count} image{' has' if count == 1 else 's have'} no label in the set's lists and stay out.",)
