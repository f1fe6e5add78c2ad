"""An image classifier of one's own, as TorchServe's documentation of custom handlers shows it."""

import io

import torch
from PIL import Image
from torchvision import transforms
from ts.torch_handler.base_handler import BaseHandler


class Picture(BaseHandler):
    transform = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def preprocess(self, requests):
        images = []
        for row in requests:
            file = row.get("data") or row.get("body")
            image = Image.open(io.BytesIO(file)).convert("RGB")
            images.append(self.transform(image))
        return torch.stack(images).to(self.device)

    def postprocess(self, outputs):
        probabilities, classes = torch.topk(torch.softmax(outputs, dim=1), 5)
        return [
            {str(number): value for number, value in zip(numbers, values, strict=True)}
            for numbers, values in zip(classes.tolist(), probabilities.tolist(), strict=True)
        ]

    def describe_handle(self):
        return {"hello": "describe", "inputs": [["x", [3, 224, 224]]]}

    def get_insights(self, tensor, raw, target):
        return [{"insight": list(tensor.shape), "target": target, "raw": type(raw).__name__}]
