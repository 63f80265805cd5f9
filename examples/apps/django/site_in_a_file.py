"""A Django site in one file, for gunicorn."""

import os

from django.conf import settings

settings.configure(
    # A real site has one of its own, and keeps it to itself.
    SECRET_KEY=os.environ.get("SECRET_KEY", "an example's"),
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    USE_X_FORWARDED_HOST=True,
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    DATA_UPLOAD_MAX_MEMORY_SIZE=16 << 20,
)

from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.csrf import csrf_exempt  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402


def hello(request):
    return HttpResponse("hello from django\n", content_type="text/plain")


def healthz(request):
    return HttpResponse(status=204)


def number(request, number):
    return HttpResponse(number, content_type="text/plain")


@csrf_exempt
@require_POST
def echo(request):
    return HttpResponse(request.body, content_type="application/octet-stream")


urlpatterns = [
    path("", hello),
    path("healthz", healthz),
    path("id/<str:number>", number),
    path("echo", echo),
]
application = get_wsgi_application()
