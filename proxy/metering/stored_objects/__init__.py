"""All APIs for objects that providers keep. Invariant: the list is closed."""

from __future__ import annotations

from proxy.metering.stored_objects.anthropic import ANTHROPIC_BATCHES, ANTHROPIC_FILES
from proxy.metering.stored_objects.api import BatchApi, FileApi, ObjectApi
from proxy.metering.stored_objects.openai import OPENAI_BATCHES, OPENAI_FILES

FILE_APIS: tuple[FileApi, ...] = (OPENAI_FILES, ANTHROPIC_FILES)
BATCH_APIS: tuple[BatchApi, ...] = (OPENAI_BATCHES, ANTHROPIC_BATCHES)
OBJECT_APIS: tuple[ObjectApi, ...] = (*FILE_APIS, *BATCH_APIS)


def files_of(api: ObjectApi) -> FileApi:
    """The files of the same family."""
    family = api.name.partition(".")[0]
    return next(one for one in FILE_APIS if one.name.partition(".")[0] == family)
