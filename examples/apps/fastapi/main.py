"""A FastAPI app, for uvicorn."""

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

app = FastAPI(openapi_url=None)


@app.get("/", response_class=PlainTextResponse)
async def hello():
    return "hello from fastapi\n"


@app.get("/healthz", status_code=204)
async def healthz():
    return None


@app.get("/id/{number}", response_class=PlainTextResponse)
async def number(number: str):
    return number


@app.post("/echo")
async def echo(request: Request):
    return Response(await request.body(), media_type="application/octet-stream")
