"""Verdicts on the files of an Airflow DAG folder: a file runs as it is, or needs a package, a value or a change."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from asynsched.airflow import names
from asynsched.airflow.finder import is_provider, provider_of
from asynsched.serialization.schema import ON_PATH, FileError, ParseReport

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
"""Python's message."""
_NO_VALUE = re.compile(r"there is no (?:variable|connection) '([^']+)'")
"""The message of a variable or connection that a file reads at its top level."""
_NO_PLUGIN = re.compile(r"the plugin (\S+) cannot be loaded: (.+)", re.DOTALL)
"""The warning that each file has of a plugin."""
_SERVED = (*names.SERVED, *names.WHOLE, *names.MOVED, *names.MOVED_WHOLE)


class Need(StrEnum):
    """The need of a file that cannot run yet."""

    PROVIDER = "provider"
    PACKAGE = "package"
    VALUE = "value"
    CHANGE = "change"


class Finding(Struct, frozen=True):
    """A reason why a file, or one of its DAGs, cannot run as it is.

    Attributes:
        what: The message of the file's error.
        names: The missing providers, as `asynsched providers install` takes them, or the missing modules, variables or
            connections.
    """

    file: str
    needs: Need
    what: str
    line: int | None = None
    names: tuple[str, ...] = ()


def judge(report: ParseReport, *, installed: Collection[str], refused: Collection[str]) -> list[Finding]:
    """Return the needs of a file; none if it runs as it is.

    Args:
        report: The parse of the file.
        installed: The installed providers.
        refused: The providers that cannot be installed here.
    """
    return [_finding(report, error, installed, refused) for error in report.errors]


def judge_plugins(reports: Sequence[ParseReport]) -> list[Finding]:
    """Return the needs of the plugins that cannot be loaded, of which every file warns. `file` is in the plugins."""
    found: dict[str, Finding] = {}
    for report in reports:
        for warning in report.warnings:
            if told := _NO_PLUGIN.search(warning.message):
                module = _NO_MODULE.search(told[2])
                package = None if module is None else module[1].partition(".")[0]
                names_of = () if package in (None, "airflow") else (str(package),)
                need = Need.PACKAGE if names_of else Need.CHANGE
                found.setdefault(told[1], Finding(f"plugins/{told[1]}", need, told[2], names=names_of))
    return list(found.values())


def is_of_plugin(warning: FileError) -> bool:
    """Return whether a warning is about a plugin, which `judge_plugins` judges."""
    return _NO_PLUGIN.search(warning.message) is not None


def _finding(report: ParseReport, error: FileError, installed: Collection[str], refused: Collection[str]) -> Finding:
    found = Finding(report.path, Need.CHANGE, error.message, error.line)
    if value := _NO_VALUE.search(error.message):
        return Finding(report.path, Need.VALUE, error.message, error.line, (value[1],))
    missing = _NO_MODULE.search(error.message) if error.kind == "import" else None
    if missing is None or ON_PATH in error.message:
        return found
    module = missing[1]
    if module.partition(".")[0] != "airflow":
        return Finding(report.path, Need.PACKAGE, error.message, error.line, (module.partition(".")[0],))
    if not is_provider(module):
        return found
    if provider_of(module) in installed:
        return found  # the installed version does not have the module
    # The parse ends at the first missing module; the others would be found one installation after another.
    imported = {provider_of(one) for source in report.sources for one in _provider_modules(source.text)}
    providers = (imported or {provider_of(module)}) - {*installed}
    if not providers or not providers.isdisjoint(refused):
        return found
    return Finding(report.path, Need.PROVIDER, error.message, error.line, tuple(sorted(providers)))


def _provider_modules(text: str) -> Iterator[str]:
    """Yield the modules of installable providers that a file imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in modules:
            now = names.MOVED_WHOLE.get(module) or next(iter(names.MOVED.get(module, {})), module)
            if is_provider(now) and now not in _SERVED and now.count(".") > 1:
                yield now


# Facts of the providers' descriptions (`connection-types` of their `get_provider_info`).
_PROVIDERS_OF_TYPES = {
    conn_type: provider
    for provider, types in {
        "airbyte": "airbyte",
        "alibaba": "adb_spark maxcompute oss",
        "amazon": "athena aws chime duckdb_aws emr redshift",
        "apache-cassandra": "cassandra",
        "apache-drill": "drill",
        "apache-druid": "druid",
        "apache-hdfs": "webhdfs",
        "apache-hive": "hive_cli hive_metastore hiveserver2",
        "apache-iceberg": "iceberg",
        "apache-impala": "impala",
        "apache-kafka": "kafka",
        "apache-kylin": "kylin",
        "apache-livy": "livy",
        "apache-pig": "pig_cli",
        "apache-pinot": "pinot pinot_admin",
        "apache-spark": "spark spark_connect spark_sql",
        "apache-tinkerpop": "gremlin",
        "atlassian-jira": "jira",
        "cloudant": "cloudant",
        "cncf-kubernetes": "kubernetes",
        "databricks": "databricks",
        "dbt-cloud": "dbt_cloud",
        "facebook": "facebook_social",
        "google": "dataprep gcp_looker gcpbigquery gcpcloudsql gcpcloudsqldb gcpspanner gcpssh google_ads"
                  " google_cloud_platform leveldb",
        "hashicorp": "vault",
        "microsoft-azure": "adls azure azure_batch azure_container_instance azure_container_registry"
                           " azure_container_volume azure_cosmos azure_data_explorer azure_data_factory azure_data_lake"
                           " azure_fileshare azure_service_bus azure_synapse msgraph powerbi wasb",
        "microsoft-mssql": "mssql",
        "pagerduty": "pagerduty pagerduty_events",
        "slack": "slack slackwebhook",
        "yandex": "yandexcloud",
        "": "email file fs generic package_index",
    }.items()
    for conn_type in types.split()
}  # fmt: skip
_OF_THEIR_NAME = (
    "arangodb asana cohere datadog dingding discord docker elasticsearch exasol ftp git github grpc http imap "
    "influxdb jdbc jenkins mongo mysql neo4j odbc openai opensearch opsgenie oracle pgvector pinecone postgres "
    "presto qdrant redis salesforce samba segment sftp smtp snowflake sqlite ssh tableau telegram teradata trino "
    "vertica weaviate zendesk"
)
"""Types of connections whose provider has the same name."""


def provider_of_type(conn_type: str) -> str | None:
    """Return the provider whose hooks use this type of connection; empty for asynsched's own, None if not known."""
    if conn_type in _OF_THEIR_NAME.split():
        return conn_type
    return _PROVIDERS_OF_TYPES.get(conn_type)
