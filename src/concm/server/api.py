"""The HTTP API: which request leads where."""

from __future__ import annotations

from starlette.routing import Route

from concm.server import changing, reading

ROUTES = [
    Route("/healthz", reading.healthz),
    Route("/readyz", reading.readyz),
    Route("/api/session", reading.session),
    Route("/api/openapi.json", reading.document),
    Route("/api/status", reading.status),
    Route("/api/predict", changing.predict, methods=["POST"]),
    Route("/api/learn", changing.learn, methods=["POST"]),
    Route("/api/inbox", reading.inbox),
    Route("/api/inbox/dismiss", changing.dismiss, methods=["POST"]),
    Route("/api/inbox/{number}/thumbnail", reading.inbox_thumbnail),
    Route("/api/classes", reading.classes),
    Route("/api/classes/rename", changing.rename, methods=["POST"]),
    Route("/api/classes/merge", changing.merge, methods=["POST"]),
    Route("/api/classes/forget", changing.forget, methods=["POST"]),
    Route("/api/classes/{name}/photos", reading.photos),
    Route("/api/photos/remove", changing.remove, methods=["POST"]),
    Route("/api/photos/move", changing.move, methods=["POST"]),
    Route("/api/photos/{number}/thumbnail", reading.thumbnail),
    Route("/api/history", reading.history),
    Route("/api/undo", changing.undo, methods=["POST"]),
    Route("/api/evaluate", changing.evaluate, methods=["POST"]),
    Route("/api/health", reading.health),
    Route("/api/map", reading.map_),
    Route("/api/card", reading.card),
    Route("/api/export", changing.export, methods=["POST"]),
    Route("/api/exports/{what}", reading.exported),
    Route("/api/jobs", reading.jobs),
    Route("/api/jobs/{number}", reading.job),
]
