"""`ksrv schema`: the JSON schema of model.yaml, for editors."""

import click


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of model.yaml.

    Editors with the YAML language server check a file whose first line is
    "# yaml-language-server: $schema=model.schema.json".
    """
    import json

    from ksrv.dialects.registry import formats
    from ksrv.repository.json_schema import json_schema

    click.echo(json.dumps(json_schema(formats()), indent=2))
