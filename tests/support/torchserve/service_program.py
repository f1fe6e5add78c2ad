"""Runs a list of cases through `ts.model_loader` and `Service.predict`, and writes what came back.

The same program runs on the real torchserve package and on ksrv's stand-in for it.
"""

import base64
import json
import os
import sys


def metrics_cache(module):
    """Return what `load` takes for metrics in the real package."""
    import ts
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    cache = MetricsCacheYamlImpl(os.path.join(os.path.dirname(ts.__file__), "configs/metrics.yaml"))
    cache.initialize_cache()
    return cache


def value_of(part):
    if "base64" in part:
        return bytearray(base64.b64decode(part["base64"]))
    return part["value"]


def load(case, real):
    from ts.model_loader import ModelLoaderFactory

    folder = case["folder"]
    os.chdir(folder)
    sys.path.insert(0, folder)
    options = {"metrics_cache": metrics_cache(case)} if real else {}
    service = ModelLoaderFactory.get_model_loader().load(
        case["name"], folder, case["handler"], None, 4, case.get("envelope"), **options
    )
    service.set_cl_socket(None)
    return service


def run(case, real):
    try:
        service = load(case, real)
    except Exception as error:
        return {"load": type(error).__mro__[-3].__name__, "text": str(error)}
    frames = []
    for batch in case["batches"]:
        requests = [
            {
                "requestId": f"r{index}".encode(),
                "headers": [{"name": b"explain", "value": b"False"}],
                "parameters": [
                    {"name": name, "contentType": part.get("type", ""), "value": value_of(part)}
                    for name, part in row.items()
                ],
            }
            for index, row in enumerate(batch)
        ]
        frames.append(base64.b64encode(service.predict(requests)).decode())
    return {"frames": frames}


def main(jobs, results, kind):
    if kind == "stand-in":
        from ksrv.dialects.torchserve.shims import finder, ts

        assert finder.install(ts.TsFinder("the differential test"))
    with open(jobs) as file:
        cases = json.load(file)
    found = {case["id"]: run(case, kind == "real") for case in cases}
    with open(results, "w") as file:
        json.dump(found, file)


main(*sys.argv[1:])
os._exit(0)  # the real package's micro-batching leaves threads that nobody ends
