"""ONNX models on IPUs, by PopART: real, or emulated on the host."""
