package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cafs/mount/daemon"
)

// As /sbin/mount.fuse.cafs, a link to it, the program is what mount(8) runs for
// the type fuse.cafs, in /etc/fstab and by hand; doc/fstab.md. The command line is
//
//	mount.fuse.cafs REPO DIR [-fnsv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//
// and the exit codes are those of mount(8). There is none for umount(8), which
// looks for umount.fuse, whatever the subtype.
const (
	helperUsage  = 1
	helperFailed = 32
)

// isHelper tells whether the program was called as a helper, by its name.
func isHelper(name string) bool { return strings.HasPrefix(filepath.Base(name), "mount.") }

func runHelper(ctx context.Context, args []string) int {
	err := helpMount(ctx, args)
	var usage *usageErr
	switch report(os.Stderr, err); {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return helperUsage
	}
	return helperFailed
}

// helperLine is the command line of a helper: flags may come anywhere.
type helperLine struct {
	args    []string
	flags   map[byte]bool // those without a value
	options []string      // of -o, split
}

func parseHelper(args []string) (l helperLine, err error) {
	l.flags = map[byte]bool{}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if len(arg) < 2 || arg[0] != '-' {
			l.args = append(l.args, arg)
			continue
		}
		for i := 1; i < len(arg); i++ {
			if strings.IndexByte("oNt", arg[i]) < 0 {
				l.flags[arg[i]] = true
				continue
			}
			value := arg[i+1:]
			if value == "" {
				if len(args) == 0 {
					return l, usagef("-%c needs a value", arg[i])
				}
				value, args = args[0], args[1:]
			}
			if arg[i] == 'o' {
				l.options = append(l.options, splitOptions(value)...)
			}
			break
		}
	}
	return l, nil
}

// splitOptions splits at commas that are neither escaped nor quoted.
func splitOptions(s string) (all []string) {
	var word strings.Builder
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			word.WriteByte(s[i])
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			all = append(all, word.String())
			word.Reset()
		default:
			word.WriteByte(c)
		}
	}
	return append(all, word.String())
}

// helperMount is what the options of -o ask for.
type helperMount struct {
	flags    []string // of cafs mount
	suid     permit
	dev      permit
	remount  bool
	set, not uintptr // MS_ flags that the kernel keeps for every file system
}

// permit is whether suid or device files count: only when asked for, and not
// when forbidden as well. mount(8) puts "nosuid" first wherever it stood on its
// command line, so the order of the two says nothing.
type permit struct{ asked, forbidden bool }

func (p permit) granted() bool { return p.asked && !p.forbidden }

// kernelFlags are options that need nothing of the daemon.
var kernelFlags = map[string]struct{ set, not uintptr }{
	"ro": {set: unix.MS_RDONLY}, "rw": {not: unix.MS_RDONLY},
	"noexec": {set: unix.MS_NOEXEC}, "exec": {not: unix.MS_NOEXEC},
	"sync": {set: unix.MS_SYNCHRONOUS}, "async": {not: unix.MS_SYNCHRONOUS},
	"dirsync": {set: unix.MS_DIRSYNC}, "nosymfollow": {set: unix.MS_NOSYMFOLLOW}, "symfollow": {not: unix.MS_NOSYMFOLLOW},
}

// helperIgnored are options for mount(8) itself, about times of access, which
// cafs does not move, or from the mount table, where mount(8) takes them from to
// remount.
var helperIgnored = map[string]bool{
	"": true, "defaults": true, "auto": true, "noauto": true, "user": true, "users": true, "nouser": true, "owner": true,
	"group": true, "nofail": true, "_netdev": true, "default_permissions": true, "nomand": true, "loud": true, "silent": true,
	"atime": true, "noatime": true, "diratime": true, "nodiratime": true, "relatime": true, "norelatime": true,
	"strictatime": true, "nostrictatime": true, "lazytime": true, "nolazytime": true,
	"comment=": true, "user_id=": true, "group_id=": true, "max_read=": true,
}

// parseOptions refuses what it does not know, unless sloppy. Of a word and its
// opposite the last counts, as everywhere in fstab(5). mount(8) keeps "suid" and "dev" to itself
// where nothing implies the opposite, so they have names of our own as well.
func parseOptions(options []string, sloppy bool) (m helperMount, err error) {
	for _, o := range options {
		name, value, hasValue := strings.Cut(o, "=")
		if k, ok := kernelFlags[o]; ok {
			m.set, m.not = m.set&^k.not|k.set, m.not&^k.set|k.not
			continue
		}
		switch {
		case helperIgnored[o] || strings.HasPrefix(o, "x-") || helperIgnored[name+"="]:
		case o == "remount":
			m.remount = true
		case o == "allow_suid":
			m.suid.asked = true
		case o == "suid" || o == "nosuid":
			m.suid = permit{asked: m.suid.asked || o == "suid", forbidden: o == "nosuid"}
		case o == "allow_dev":
			m.dev.asked = true
		case o == "dev" || o == "nodev":
			m.dev = permit{asked: m.dev.asked || o == "dev", forbidden: o == "nodev"}
		case o == "allow_other" || o == "verbose":
			m.flags = append(m.flags, "--"+strings.ReplaceAll(o, "_", "-"))
		case hasValue && (name == "profile" || name == "dirty_limit" || name == "commit_interval"):
			m.flags = append(m.flags, "--"+strings.ReplaceAll(name, "_", "-"), value)
		case !sloppy:
			return m, usagef("mount option %q is unknown; see doc/fstab.md", o)
		}
	}
	if m.suid.granted() {
		m.flags = append(m.flags, "--allow-suid")
	}
	if m.dev.granted() {
		m.flags = append(m.flags, "--allow-dev")
	}
	return m, nil
}

func helpMount(ctx context.Context, args []string) error {
	l, err := parseHelper(args)
	if err != nil {
		return err
	}
	if len(l.args) != 2 {
		return usagef("usage: mount.fuse.cafs REPO DIR [-fnsv] [-o OPTIONS]")
	}
	m, err := parseOptions(l.options, l.flags['s'])
	if err != nil || l.flags['f'] {
		return err
	}
	repository, dir := l.args[0], l.args[1]
	if m.remount {
		return m.apply(dir)
	}
	line := append([]string{"cafs", "mount", "--background", "--repo", repository}, m.flags...)
	if !l.flags['v'] {
		line = append(line, "--quiet")
	}
	if err := newApp().RunContext(ctx, append(line, "--", dir)); err != nil || m.set == 0 {
		return err
	}
	if err := m.apply(dir); err != nil {
		return errors.Join(err, daemon.Unmount(dir, true))
	}
	return nil
}

// apply changes the flags of a mount to what the options say, and leaves those
// they do not mention.
func (m helperMount) apply(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("remount %s: %w", dir, err)
	}
	// ST_RDONLY, NOSUID, NODEV, NOEXEC and SYNCHRONOUS have the values of the
	// MS_ flags.
	const kept = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_SYNCHRONOUS
	flags := uintptr(st.Flags)&kept&^m.not | m.set
	if err := unix.Mount("", dir, "", flags|unix.MS_REMOUNT, ""); err != nil {
		return fmt.Errorf("remount %s: %w", dir, err)
	}
	return nil
}
