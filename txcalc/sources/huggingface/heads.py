"""The head of a model, by the class that `architectures[0]` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txcalc.errors import ABSENT
from txcalc.parts.options import Raw, Table
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.keys import Keys, letters_of

# Heads by the ending of the class name; the first match counts.
HEADS: dict[str, str] = metadata.table("families.json")["heads"]

CAUSAL_LM = ("ForCausalLM", "LMHeadModel")
TASKS = frozenset({"sequence", "token", "question", "choice", "pretraining", "pairs"})
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
# Model types of remote code with Llama's sequence classifier: one matrix.
SCORING = frozenset({"deepseek", "internlm", "internlm2", "minicpm"})
# Endings of class names in remote code, after the model type.
ENDINGS = (
    "forcausallm", "forconditionalgeneration", "formaskedlm", "forsequenceclassification", "fortokenclassification",
    "lmheadmodel", "model",
)  # fmt: skip


def named_after(model_type: str) -> list[str]:
    """Possible class names of a model type, in lower case."""
    return [letters_of(model_type) + ending for ending in ENDINGS]


def class_of(data: Table) -> str | None:
    """The class that a config names first."""
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


class HeadReader(Keys):
    """The keys of the table `head`."""

    def head_of(self, *known: str) -> str:
        """The head of the class `architectures[0]`: a value of `HEADS`, "none" for a class that returns hidden states;
        the first of `known` if the config names no class."""
        self.ignore("architectures")
        names = self.data.get("architectures")
        if names is None or names == [] or "architectures[0]" in self.faulty:
            classes = metadata.classes(self.model_type)
            top_level = not self.path and self.parent is None
            if known[0] == "lm" and top_level and classes and all(cls.endswith("TextModel") for cls in classes):
                self.note(f"a language-model head is counted, as in the multimodal class: {classes[0]} has none")
            return known[0]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self.fault("architectures", names, "a list of class names")
            return known[0]
        ending = next((ending for ending in HEADS if names[0].endswith(ending)), None)
        bases = [letters_of(self.model_type + suffix) for suffix in ("model", "textmodel", "")]
        writer = names[0].removesuffix("Model") + "ForConditionalGeneration"
        if ending == "Model" and letters_of(names[0]) not in bases and writer not in metadata.classes(self.model_type):
            ending = None  # …RewardModel and the like
        elif ending and HEADS[ending] in TASKS and not self._is_class(names[0], ending):
            ending = None  # another family's head
        if ending is None or HEADS[ending] not in known:
            expected = " or ".join(f"…{ending}" for ending in HEADS if HEADS[ending] in known)
            self.fault_class(f"a class that ends in {expected}", "other heads are not supported")
            return known[0]
        return HEADS[ending]

    def _is_class(self, cls: str, ending: str) -> bool:
        return letters_of(cls) == letters_of(self.model_type + ending) or cls in metadata.classes(self.model_type)

    def fault_class(self, expected: str, fix: str = "other classes may have other layers") -> None:
        self.fault("architectures[0]", class_of(self.data), expected, fix)

    def class_ends(self, *endings: str) -> bool:
        """Whether `architectures[0]` has one of these endings."""
        return (class_of(self.data) or "").endswith(endings)

    def is_causal(self) -> bool:
        """Whether attention is causal: in causal language models, if `is_decoder` is true."""
        self.require_value(False, "is_encoder_decoder", "add_cross_attention", why="only a single stack is supported")
        if not self.class_ends(*CAUSAL_LM):
            self.require_value(False, "is_decoder", why="only an encoder is supported")
            return False
        causal: bool = self.flag("is_decoder", default=False)
        if not causal:
            self.note("is_decoder is not true: attention is bidirectional, as transformers runs it")
        return causal

    def labels(self, default: int = 2) -> int:
        """The number of a classifier's classes; `default` if the config does not give it."""
        self.ignore("id2label", "label2id", "num_labels")
        labels, number = self.data.get("id2label"), self.data.get("num_labels")
        if labels is None:
            return int(self.size("num_labels", default=default))
        if not isinstance(labels, Mapping) or not labels:
            self.fault("id2label", labels, "an object with a name for each class")
            return 1
        if number is not None and number != len(labels):
            self.fault("num_labels", number, f"{len(labels)}, the length of id2label")
        return len(labels)

    def classifier(self, task: str, default: int = 2, **keys: object) -> Raw:
        """A matrix from hidden states to classes: at every position for tokens and answer spans, else at one."""
        labelled = "id2label" in self or "num_labels" in self
        classes = 1 if task == "choice" else 2 if task == "question" and not labelled else self.labels(default)
        if task == "question" and classes != 2:
            self.fault("num_labels", classes, "2: the start and the end of an answer")
        return {"form": "classifier", "classes": classes, "every": task in ("token", "question"), **keys}

    def lm_head(self, tied: bool, **keys: object) -> Raw:
        """A language-model head; `tied` is the class's default."""
        classes = () if self.path else metadata.classes(self.model_type)
        tasks = [HEADS[ending] for ending in _CLASSIFIERS if any(cls.endswith(ending) for cls in classes)]
        tasks += ["sequence"] * (self.model_type in SCORING)
        form = self.head_of("lm", "none", *tasks)
        if form != "lm":
            self.ignore("tie_word_embeddings")
            labelled = any(self.data.get(key) is not None for key in ("id2label", "num_labels"))
            if form == "sequence" and self.model_type in SCORING and not labelled:
                why = "modified copies of that class have other classifiers and no such key"
                self.fault("num_labels", ABSENT, "a whole number above 0", why)
            return {"form": "none"} if form == "none" else self.decoder_classifier(form)
        return {"tied": self.flag("tie_word_embeddings", default=tied), **keys}

    def summary_activation(self, act: str | None, projects: bool = True) -> str | None:
        """The activation of the layer between the pooled position and the classifier, None without such a layer; `act`
        and `projects` are the class's defaults."""
        if not self.class_ends("ForMultipleChoice", "ForSequenceClassification"):
            self.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
            return act
        self.require_value(False, "summary_proj_to_labels", why="the layer must be as wide as the model")
        self.check_summary_type("last")
        projects = self.flag("summary_use_proj", default=projects)
        self.ignore("summary_activation")
        if not projects:
            return None
        silent = self.data.get("summary_activation", act) in (None, "")
        return "none" if silent else self.activation("summary_activation", default=act or "tanh")

    def check_summary_type(self, default: str) -> None:
        """A fault for attention pooling."""
        if self.text("summary_type", default=default) == "attn":
            self.fault("summary_type", "attn", "'first', 'last', 'mean' or 'cls_index'")

    def check_simple_answers(self, form: str) -> None:
        """A fault for the beam-search question answering of XLM and XLNet."""
        if form == "question" and not self.class_ends("Simple"):
            self.fault_class("…ForQuestionAnsweringSimple", "beam search over answers is not supported")

    def decoder_classifier(self, task: str) -> Raw:
        """A decoder's classifier, computed at every position; that of sequences has no bias."""
        if task == "token":
            self.require_value(True, "token_classification_bias", why="only classifiers with a bias are supported")
        return self.classifier(task) | {"every": True, "bias": task != "sequence"}

    def with_idle(self, raw: Raw, parameters: int, what: str, status: str = "are counted but not run") -> Raw:
        """Add parameters that a forward pass does not use, and a note that says `what` they are."""
        if not parameters:
            return raw
        self.note(f"{what} ({parameters:,} parameters) {status}")
        return raw | {"idle": raw.get("idle", 0) + parameters}

    def require_single_stack(self) -> None:
        """A fault for an encoder–decoder, or pruned heads."""
        keys = ("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder")
        self.require_value(False, *keys, why="only a single stack is supported")
        self.require_value({}, "pruned_heads", why="pruned heads are not supported")
        self.ignore("is_decoder", "cross_attention_hidden_size")

    def require_published_class(self, *prefixes: str, writes: bool = False, suffixes: Sequence[str] = ()) -> None:
        """A fault unless `architectures[0]` is a class of this type's remote code. Class names begin with one of
        `prefixes`, by default with the model type; `suffixes` are further endings; with `writes` no classifier is
        allowed."""
        cls = class_of(self.data)
        classes = [
            prefix + ending for prefix in prefixes or (letters_of(self.model_type),) for ending in (*ENDINGS, *suffixes)
        ]
        classes = [name for name in classes if not (writes and name.endswith("classification"))]
        if cls is not None and letters_of(cls) not in classes:
            self.fault_class(f"a class of {self.model_type}, with its head or without a head")
