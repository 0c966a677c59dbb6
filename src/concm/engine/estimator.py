"""ConCM as an estimator: features and labels in, labels out, with the verbs that scikit-learn's users know."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session

Names = Sequence[str] | Mapping[Any, str]


class ConCM:
    """A classifier of features that learns new classes from a few examples, again and again.

    `fit` learns the base classes, `learn` new ones (or more examples of known ones), and `predict` names any of them.

    Parameters
    ----------
    settings
        Settings of the engine; the library's defaults unless given.
    seed
        Seed of all random choices.
    device
        Where it computes: "cpu" or "cuda".

    Attributes
    ----------
    classes_
        The labels, in the order of the columns of `predict_proba`: first those of `fit`, sorted, then those of each
        `learn`.
    engine_
        The engine that does the work, once the classifier is fitted.
    n_features_in_
        Dimensions of the features.

    Examples
    --------
    >>> import numpy, concm
    >>> random = numpy.random.default_rng(0)
    >>> centres = random.normal(size=(4, 16))
    >>> y = numpy.repeat(["ant", "bee", "cat", "dog"], 10)
    >>> X = numpy.repeat(centres, 10, axis=0) + 0.1 * random.normal(size=(40, 16))
    >>> classifier = concm.ConCM().fit(X[:30], y[:30])
    >>> classifier.learn(X[30:35], y[30:35]).predict(X[38:])
    array(['dog', 'dog'], dtype='<U3')
    """

    def __init__(self, settings: Settings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        self.settings = settings
        self.seed = seed
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike, names: Names | None = None) -> ConCM:  # noqa: N803
        """Learn the base classes, two or more, and forget everything else.

        Parameters
        ----------
        X, y
            Features (n, d) and labels (n,): numbers or words.
        names
            Names of the classes, from which their attributes follow: one for each label in sorted order, or a mapping
            by label. Labels that are words are names themselves.
        """
        features, labels = _checked(X, y)
        found = np.unique(labels)
        if len(found) < 2:
            raise Misuse(f"fit needs two classes or more, and `y` has only {found[0]!r}")
        kept = {label: features[torch.from_numpy(labels == label)] for label in found.tolist()}
        session = _session(0, 0, kept, _names(found, names))
        engine = Engine(self.settings, seed=self.seed, device=self.device)
        engine.fit_base(BaseSession.of(session))
        self.engine_, self.classes_, self._features = engine, found, kept
        self.n_features_in_ = features.shape[1]
        return self

    def learn(self, X: ArrayLike, y: ArrayLike, names: Names | None = None) -> ConCM:  # noqa: N803
        """Learn new classes from a few examples each, or improve known ones; nothing is forgotten.

        Parameters
        ----------
        X, y
            Features (n, d) and labels (n,).
        names
            Names of the classes of this call: one for each of its labels in sorted order, or a mapping by label.
        """
        self._check_fitted()
        features, labels = _checked(X, y, self.n_features_in_)
        if labels.dtype.kind != self.classes_.dtype.kind:
            raise Misuse(f"`y` has labels of {labels.dtype}, but ConCM was fitted with labels of {self.classes_.dtype}")
        places = {label: at for at, label in enumerate(self.classes_.tolist())}
        more = {label: features[torch.from_numpy(labels == label)] for label in np.unique(labels).tolist()}
        new = np.array([label for label in more if label not in places], dtype=labels.dtype)
        called = _names(new if isinstance(names, Mapping) or names is None else np.unique(labels), names)
        grown = {label: torch.cat([self._features[label], own]) for label, own in more.items() if label in places}
        if grown:
            self.engine_.revise({places[label]: (own, None) for label, own in grown.items()})
        if len(new):
            fresh = {label: more[label] for label in new.tolist()}
            self.engine_.learn(_session(1, len(self.classes_), fresh, called))
            self.classes_ = np.concatenate([self.classes_, new])
            grown |= fresh
        self._features = {**self._features, **grown}
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, names: Names | None = None) -> ConCM:  # noqa: N803
        """Do the same as `learn`, or as `fit` the first time."""
        return self.learn(X, y, names) if hasattr(self, "engine_") else self.fit(X, y, names)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float32]:  # noqa: N803
        """Scores (n, classes): cosines to prototypes and structure, plus the bias of novel classes."""
        self._check_fitted()
        features, _ = _checked(X, None, self.n_features_in_)
        with torch.no_grad():
            scores: NDArray[np.float32] = self.engine_.scores(features).cpu().numpy()
        return scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:  # noqa: N803
        """Probabilities (n, classes): the softmax of the scores times the scale of the matching loss."""
        scores = torch.from_numpy(self.decision_function(X))
        shares: NDArray[np.float32] = (self.engine_.settings.scale * scores).softmax(1).numpy()
        return shares

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The most likely label of each row."""
        scores = self.decision_function(X)
        best: NDArray[Any] = self.classes_[scores.argmax(1)]
        return best

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803
        """The share of rows whose label is predicted."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn asks for them."""
        return {"settings": self.settings, "seed": self.seed, "device": self.device}

    def set_params(self, **params: Any) -> ConCM:
        """Change the constructor's arguments; they count from the next `fit` on."""
        for name, value in params.items():
            if name not in self.get_params():
                raise Misuse(f"ConCM has no parameter {name!r}; it has {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "engine_")

    def __repr__(self) -> str:
        given = {name: value for name, value in self.get_params().items() if value not in (None, 0, "cpu")}
        return f"ConCM({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def _check_fitted(self) -> None:
        if not hasattr(self, "engine_"):
            raise Misuse("this ConCM is not fitted yet: fit it with two classes or more first")


def _session(index: int, first: int, rows: Mapping[Any, Tensor], names: Mapping[Any, str]) -> Session:
    """A session of these rows by label, whose classes are numbered from `first` on."""
    numbers = torch.cat([torch.full((len(own),), first + at) for at, own in enumerate(rows.values())])
    words = tuple(names[label] for label in rows)
    return Session(index, range(first, first + len(rows)), words, torch.cat(list(rows.values())), numbers)


def _checked(X: ArrayLike, y: ArrayLike | None, dimension: int | None = None) -> tuple[Tensor, NDArray[Any]]:  # noqa: N803
    """Features as a tensor (n, d) and labels as an array (n,)."""
    try:
        features = torch.as_tensor(X if isinstance(X, Tensor) else np.array(X, dtype=np.float32)).detach().cpu().float()
    except (TypeError, ValueError) as error:
        raise Misuse(f"`X` should be numbers (rows, dimensions): {error}") from error
    if features.ndim != 2 or not features.shape[1]:
        raise Misuse(f"`X` should be (rows, dimensions), not {tuple(features.shape)}; reshape it")
    if not features.isfinite().all():
        raise Misuse("`X` contains NaN or infinity")
    if dimension is not None and features.shape[1] != dimension:
        raise Misuse(f"`X` has {features.shape[1]} features, but ConCM was fitted with {dimension}")
    if y is None:
        return features, np.empty(0)
    labels = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if labels.dtype.kind not in "iuUb":
        raise Misuse(f"`y` should have whole numbers or words as labels, not {labels.dtype}")
    if labels.ndim != 1 or len(labels) != len(features) or not len(labels):
        raise Misuse(f"`y` should have one label for each of the {len(features)} rows, not {labels.shape}")
    return features, labels


def _names(labels: NDArray[Any], names: Names | None) -> dict[Hashable, str]:
    """The name of each label."""
    every = labels.tolist()
    if names is None:
        return {label: label if isinstance(label, str) else f"class {label}" for label in every}
    if isinstance(names, Mapping):
        if lacking := [label for label in every if label not in names]:
            raise Misuse(f"`names` has none for the label {lacking[0]!r}")
        return {label: str(names[label]) for label in every}
    if len(names) != len(every):
        raise Misuse(f"`names` has {len(names)} names for {len(every)} classes")
    return {label: str(name) for label, name in zip(every, names, strict=True)}
