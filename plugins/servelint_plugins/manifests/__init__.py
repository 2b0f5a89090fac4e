"""Readers of files that start engines, by kind of file. Imported only when such a file is read."""

from __future__ import annotations

from collections.abc import Iterable

from servelint.launch.manifest import ManifestFormat


def manifests() -> Iterable[ManifestFormat]:
    """Yield the built-in formats; a lower priority is tried first, so the more specific ones have it."""
    from servelint_plugins.manifests import charts, compose, engine_files, kubernetes, python, recipes, settings, shell

    yaml = (".yaml", ".yml", ".json")
    yield ManifestFormat("kubernetes", kubernetes.read, yaml, 10, kubernetes.SOURCES)
    yield ManifestFormat("docker-compose", compose.read, yaml, 20, compose.SOURCES)
    yield ManifestFormat("srt-slurm", recipes.slurm, yaml, 25, recipes.SLURM_SOURCES)
    yield ManifestFormat("truss", recipes.truss, yaml, 26, recipes.TRUSS_SOURCES)
    yield ManifestFormat("oci-blueprint", recipes.oci, (".json",), 27, recipes.OCI_SOURCES)
    yield ManifestFormat("skypilot", recipes.skypilot, yaml, 28, recipes.SKYPILOT_SOURCES)
    yield ManifestFormat("dstack", recipes.dstack, yaml, 29, recipes.DSTACK_SOURCES)
    yield ManifestFormat("benchmark-list", recipes.listed_tests, yaml, 30, recipes.LIST_SOURCES)
    yield ManifestFormat("engine-options", engine_files.read, yaml, 40, engine_files.SOURCES)
    yield ManifestFormat("helm-values", charts.read, yaml, 50, charts.SOURCES)
    yield ManifestFormat("python", python.read, (".py",), 50, python.SOURCES)
    yield ManifestFormat("bentoml", settings.bentoml, (".toml",), 50, settings.BENTOML_SOURCES)
    yield ManifestFormat("triton", settings.triton, (".pbtxt",), 50, settings.TRITON_SOURCES)
    yield ManifestFormat("lmi", settings.lmi, (".properties", ".txt"), 50, settings.LMI_SOURCES)
    yield ManifestFormat("shell", shell.read, (".sh", ".bash", ".txt", ".md", ".sbatch"), 60, shell.SOURCES)
