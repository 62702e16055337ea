"""Traces of jobs, from the client's request to the answer, by OpenTelemetry's API.

spans.py                             what the service uses; without the SDK it records nothing
opening.py                           whether the environment asks for traces
sdk.py                               the only module that imports the SDK
"""
