"""The steps of `postprocess:` in model.yaml: scores, boxes, texts and masks."""
