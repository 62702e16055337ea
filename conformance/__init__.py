"""Whether a server keeps to OpenAI's API, judged by the official `openai` client.

It assumes nothing of Nightshift: any server with a base URL can be checked. `runner` runs the checks of
`checks/`, each within its time limit; `outcomes` and `report` are pure.
"""
