"""MLServer: a custom runtime, adaptive batching, REST (JSON) and gRPC."""

import asyncio
import sys
from collections.abc import AsyncIterator

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse
from work import OnnxModel, first_ten, pictures, words


class Work(MLModel):
    async def load(self) -> bool:
        onnx = {"w5": "network", "w6": "forest"}.get(self.name)
        self.model = OnnxModel(onnx, threads=2) if onnx else None
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        if self.name == "w3":
            root = getattr(given.data, "root", given.data)
            y = pictures(list(root))
        else:
            x = NumpyCodec.decode_input(given)
            y = self.model.run(x) if self.model else first_ten(x) if self.name == "w2" else x
        output = NumpyCodec.encode_output("y", y)
        return InferenceResponse(model_name=self.name, outputs=[output])

    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        async for _ in payloads:
            for word in words():
                output = StringCodec.encode_output("y", [word])
                yield InferenceResponse(model_name=self.name, outputs=[output])


async def main(http: int, grpc: int, metrics: int) -> None:
    large = 1 << 30
    settings = Settings(
        host="127.0.0.1", http_port=http, grpc_port=grpc, metrics_port=metrics, parallel_workers=0,
        gzip_enabled=False, debug=False, grpc_max_message_length=large, use_structured_logging=False,
    )  # fmt: skip
    models = [
        ModelSettings(
            name=f"w{number}", implementation=Work, max_batch_size=8 if number == 5 else 0,
            max_batch_time=0.001 if number == 5 else 0,
        )
        for number in range(1, 8)
    ]  # fmt: skip
    await MLServer(settings).start(models)


if __name__ == "__main__":
    asyncio.run(main(*(int(port) for port in sys.argv[1:4])))
