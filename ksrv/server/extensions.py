"""What `extensions` in the server's metadata lists: the parts of the protocol that work here."""

EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "classification",
    "model_repository",
    "model_configuration",
    "statistics",
    "binary_image_input",
    "binary_data_size_list",
)
