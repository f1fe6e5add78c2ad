"""The answer of `GET /models/M`: TorchServe's description, filled from ksrv's settings."""

from typing import TYPE_CHECKING, Any

from ksrv.dialects.torchserve.calls import FORMAT

if TYPE_CHECKING:
    from ksrv.engine.model import ModelVersion


def description(model: "ModelVersion") -> dict[str, Any]:
    """Return the description of one version.

    Keys of features that ksrv does not serve have the value with which TorchServe shows that a feature is off.
    """
    config = model.config
    archive = config.dialect.get(FORMAT, {})
    batching = config.batching
    statistics = model.statistics()
    waiting = statistics.pending
    return {
        "modelName": model.spec.name,
        "modelVersion": model.spec.version,
        "modelUrl": archive.get("archive", model.spec.name),
        "runtime": (archive.get("manifest") or {}).get("runtime", "python"),
        "minWorkers": config.instances,
        "maxWorkers": config.instances,
        "batchSize": batching.max_batch_size if batching else 1,
        "maxBatchDelay": int(batching.max_delay_ms) if batching else 0,
        "responseTimeout": config.run_timeout_ms // 1000,
        "startupTimeout": int(config.start_timeout_s),
        "maxRetryTimeoutInSec": 0,
        "clientTimeoutInMills": config.timeout_ms,
        "parallelType": "",
        "parallelLevel": 0,
        "deviceType": "cpu" if model.spec.device in ("", "cpu") else "gpu",
        "continuousBatching": False,
        "useJobTicket": False,
        "useVenv": False,
        "stateful": False,
        "sequenceMaxIdleMSec": 0,
        "sequenceTimeoutMSec": 0,
        "maxNumSequence": 0,
        "maxSequenceJobQueueSize": 0,
        "loadedAtStartup": True,
        "workers": [
            {"id": str(number), "status": "READY" if statistics.ready else "UNLOADED"}
            for number in range(config.instances)
        ],
        "jobQueueStatus": {
            "remainingCapacity": max(0, config.queue_size - waiting),
            "pendingRequests": waiting,
        },
    }
