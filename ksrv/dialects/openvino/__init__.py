"""The dialect of OpenVINO Model Server (OVMS): its config.json, and the model folders that this file lists."""
