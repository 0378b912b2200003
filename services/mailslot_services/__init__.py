"""Who runs: thin mains over contracts, core and SDK. Nothing imports a service; each offers a command of the CLI."""
