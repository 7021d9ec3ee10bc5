"""The app: a local page on which every edit redraws the schedules (`ppopt app`).

It needs the packages of the extra `app`: Starlette and uvicorn.
"""
