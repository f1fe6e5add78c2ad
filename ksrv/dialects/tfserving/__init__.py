"""TensorFlow Serving: its REST routes, its gRPC services and its model_config_list files."""
