"""Traces of jobs, from the client's request to the answer: OpenTelemetry's, where it is installed and on.

context.py, tracer.py, current.py    what the service uses; they import nothing
opening.py                           whether the environment asks for traces
otlp.py                              the only module that imports OpenTelemetry
"""
