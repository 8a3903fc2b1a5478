"""Upload jobs: taken one at a time, repeated until the object store has confirmed every part (§6)."""

from __future__ import annotations

from flux.core.errors import FluxError
from flux.core.node import ArtifactReference
from flux.core.paths import printable
from flux.engine.node.desk import Holding, holding
from flux.engine.node.node import Node
from flux.failpoints import Point, Steps
from flux.store import artifact_rows, sandboxes, upload_jobs
from flux.store.upload_jobs import Job

_NANOSECONDS = 1_000_000_000
_DOUBLINGS_MAX = 30
_TEXT_MAX = 300
#: What an upload holds, no sandbox's id: uploads are done one after the other, each with all of the bandwidth.
_KEY = "#uploads"


def work_once(node: Node, artifact_id: str | None = None) -> Steps[bool]:
    """Work on the open job that has been due for longest, or on that of an artifact, due or not.

    Returns:
        Whether there was one that nobody else works on.

    Raises:
        FluxError: why an ``artifact_id`` that was asked for could not be uploaded; the job stays open in any case.
    """
    with holding(node.desk, _KEY) as mine:
        taken = _take(node, artifact_id, mine)
        if taken is None:
            return False
        job, reference = taken
        try:
            yield Point.UPLOAD_TAKEN
            sent = node.artifacts.upload(reference)
            yield Point.UPLOAD_CONFIRMED
            _finish(node, reference, sent)
        except Exception as error:
            _put_off(node, job, error)
            if artifact_id is not None:
                raise
            return True
        yield Point.UPLOAD_COMMITTED
        return True


def _take(node: Node, artifact_id: str | None, mine: Holding) -> tuple[Job, ArtifactReference] | None:
    with node.writing() as tx:
        if node.desk.is_held(_KEY):
            return None
        job = upload_jobs.find(tx, artifact_id) if artifact_id is not None else upload_jobs.due(tx, node.moment())
        artifact = None if job is None else artifact_rows.find(tx, job.artifact_id)
        if job is None or artifact is None:
            return None
        upload_jobs.begin(tx, job.artifact_id)
        artifact_rows.set_state(tx, job.artifact_id, "uploading")
        mine.take()
        return job, artifact.reference


def _finish(node: Node, reference: ArtifactReference, sent: int) -> None:
    """Only now is the artifact durable, and its predecessor free to go (§6)."""
    with node.writing() as tx:
        upload_jobs.finish(tx, reference.id, sent)
        artifact_rows.set_state(tx, reference.id, "durable")
        sandboxes.set_backup(tx, reference.id)
    node.observer.count("upload.done")
    node.observer.count("uploaded_bytes", sent)


def _put_off(node: Node, job: Job, error: Exception) -> None:
    settings = node.settings
    doubled = settings.upload_retry_seconds * 2 ** min(job.tries, _DOUBLINGS_MAX)
    delay = int(min(doubled, settings.upload_retry_most_seconds) * _NANOSECONDS)
    text = error.message if isinstance(error, FluxError) else printable(f"{type(error).__name__}: {error}")
    with node.writing() as tx:
        upload_jobs.put_off(tx, job.artifact_id, text[:_TEXT_MAX], node.moment(), delay)
    node.observer.count("upload.failed")
