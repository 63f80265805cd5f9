"""A Django site in one file: a form with CSRF protection, a session cookie, redirects, an upload, a stream."""

import hashlib

from django.conf import settings

settings.configure(
    DEBUG=False,
    SECRET_KEY="only for tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
    ],
    INSTALLED_APPS=["django.contrib.sessions"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    USE_X_FORWARDED_HOST=True,
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    DATA_UPLOAD_MAX_MEMORY_SIZE=None,
)

from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse, StreamingHttpResponse  # noqa: E402
from django.middleware.csrf import get_token  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.csrf import csrf_exempt  # noqa: E402


def hello(request):
    return HttpResponse("hello from django\n", content_type="text/plain")


def form(request):
    if request.method == "POST":
        request.session["name"] = request.POST["name"]
        return HttpResponseRedirect("/greeting/")
    token = get_token(request)
    return HttpResponse(f'<form method="post"><input name="csrfmiddlewaretoken" value="{token}"></form>')


def greeting(request):
    return HttpResponse(f"hello, {request.session.get('name', 'nobody')}\n", content_type="text/plain")


def where(request):
    """What Django makes of the forwarded fields."""
    return JsonResponse({
        "uri": request.build_absolute_uri(),
        "secure": request.is_secure(),
        "for": request.META.get("HTTP_X_FORWARDED_FOR"),
    })


@csrf_exempt
def upload(request):
    digest, length = hashlib.sha256(), 0
    for part in request.FILES["file"].chunks():
        digest.update(part)
        length += len(part)
    return JsonResponse({"length": length, "sha256": digest.hexdigest(), "comment": request.POST["comment"]})


def stream(request):
    return StreamingHttpResponse((f"{number}\n" for number in range(1000)), content_type="text/plain")


def fails(request):
    raise RuntimeError("this view fails on purpose")


urlpatterns = [
    path("hello/", hello),
    path("form/", form),
    path("greeting/", greeting),
    path("where/", where),
    path("upload/", upload),
    path("stream/", stream),
    path("fails/", fails),
]
application = get_wsgi_application()
