package main

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// arrange puts the flags of a command line before its arguments, where the flag
// package looks for them, so that they may stand anywhere up to a "--"; and it
// splits joined short flags (-rq). What follows "--" is left alone:
//
//	mount DIR -b -- ls -l   becomes   mount -b -- DIR -- ls -l
//
// The first "--" is the flag package's; the second stays for mount, for which
// the first argument has to come before it.
func arrange(app *cli.App, args []string) ([]string, error) {
	if len(args) == 0 {
		return args, nil
	}
	head, rest := args[:1], args[1:]
	cmds := app.Commands
	var cmd *cli.Command
	for len(rest) > 0 {
		next := find(cmds, rest[0])
		if next == nil {
			break
		}
		head, rest, cmd, cmds = append(head, rest[0]), rest[1:], next, next.Subcommands
	}
	if cmd == nil || len(cmd.Subcommands) > 0 {
		return args, nil // help, or a command that is not there
	}
	flags, operands, err := split(cmd, rest)
	if err != nil {
		return nil, err
	}
	out := append(append([]string{}, head...), flags...)
	if len(operands) > 0 {
		out = append(append(out, "--"), operands...)
	}
	return out, nil
}

func find(cmds []*cli.Command, name string) *cli.Command {
	for _, c := range cmds {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// split sorts the arguments of a command into flags with their values, and the
// rest.
func split(cmd *cli.Command, args []string) (flags, operands []string, err error) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "--" && cmd.Name == "mount" && len(operands) > 0:
			return flags, append(append(operands, "--"), args...), nil
		case arg == "--":
			return flags, append(operands, args...), nil
		case len(arg) < 2 || arg[0] != '-': // also "-", which is stdin
			operands = append(operands, arg)
			continue
		}
		name, _, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		parts := []string{arg}
		if !joined && !strings.HasPrefix(arg, "--") && len(name) > 1 && !hasFlag(cmd, name) {
			parts = parts[:0]
			for _, r := range name {
				parts = append(parts, "-"+string(r))
				name = string(r) // the last one may take a value
			}
		}
		flags = append(flags, parts...)
		if joined || !takesValue(cmd, name) {
			continue
		}
		if len(args) == 0 {
			return nil, nil, usagef("the flag %s needs a value; see 'cafs %s --help'", arg, cmd.Name)
		}
		flags, args = append(flags, args[0]), args[1:]
	}
	return flags, operands, nil
}

func lookupFlag(cmd *cli.Command, name string) cli.Flag {
	for _, f := range cmd.Flags {
		for _, n := range f.Names() {
			if n == name {
				return f
			}
		}
	}
	return nil
}

func hasFlag(cmd *cli.Command, name string) bool {
	return name == "help" || lookupFlag(cmd, name) != nil
}

func takesValue(cmd *cli.Command, name string) bool {
	f, ok := lookupFlag(cmd, name).(cli.DocGenerationFlag)
	return ok && f.TakesValue()
}
