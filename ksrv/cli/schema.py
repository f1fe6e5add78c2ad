"""`ksrv schema`: the JSON schema of model.yaml, for editors."""

import click


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of model.yaml.

    Editors that know the YAML language server check a file that begins with
    "# yaml-language-server: $schema=model.schema.json" against it.
    """
    import json

    from ksrv.repository.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
