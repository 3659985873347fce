package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"cafs/mount/daemon"
	"cafs/mount/repo"
	"cafs/mount/tree"
)

// works is a repository's history as commands see it: in its daemon when it is
// mounted, and opened by this process with its tree when it is not.
type works struct {
	*session
	local *repo.History // nil when a daemon has the repository
}

// openWorks opens the history for the named command.
func openWorks(ctx context.Context, path, command string) (*works, error) {
	s, err := open(ctx, path, command, nil)
	if err != nil {
		return nil, err
	}
	w := &works{session: s}
	if s.repo == nil {
		return w, nil
	}
	t, _, err := s.repo.OpenTree(ctx, repo.TreeOptions{Owner: tree.Cred{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	w.local = &repo.History{Repo: s.repo, Tree: t}
	return w, nil
}

// do does one operation; see repo.History. each hears of what comes before the
// result.
func (w *works) do(ctx context.Context, op string, arg, val any, each func(json.RawMessage) error) error {
	if w.client != nil {
		return w.client.Do(ctx, op, arg, val, each)
	}
	js, err := json.Marshal(arg)
	if err != nil {
		return err
	}
	res, err := w.local.Do(ctx, op, js, func(v any) error {
		if each == nil {
			return nil
		}
		js, err := json.Marshal(v)
		if err == nil {
			err = each(js)
		}
		return err
	})
	if err != nil || val == nil {
		return err
	}
	if js, err = json.Marshal(res); err == nil {
		err = json.Unmarshal(js, val)
	}
	return err
}

// doIn opens the history, does one operation and closes it.
func doIn(ctx context.Context, repository, command, op string, arg, val any, each func(json.RawMessage) error) (err error) {
	w, err := openWorks(ctx, repository, command)
	if err != nil {
		return err
	}
	defer w.closing(&err)
	return w.do(ctx, op, arg, val, each)
}

// treePath makes a path of the tree of what a user wrote: a path on the mount of
// this repository, or one that begins at the tree's root.
func treePath(repository, arg string) (string, error) {
	path, err := repo.Resolve(repository)
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(arg)
	if err != nil {
		return "", err
	}
	all, err := daemon.Mounts()
	if err != nil {
		return "", err
	}
	for _, m := range all {
		if m.Source != path {
			continue
		}
		if rel, err := filepath.Rel(m.Dir, abs); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return filepath.Join("/", rel), nil
		}
	}
	if !strings.HasPrefix(arg, "/") {
		arg = "/" + arg
	}
	return filepath.Clean(arg), nil
}

// splitCommit splits COMMIT[:PATH]. Times have colons too: the path is what
// follows ":/", or the last colon when what is before it is no time.
func splitCommit(arg string) (commit, path string) {
	if i := strings.Index(arg, ":/"); i >= 0 {
		return arg[:i], arg[i+1:]
	}
	i := strings.LastIndexByte(arg, ':')
	if i < 0 {
		return arg, ""
	}
	digits := strings.Trim(arg[i+1:], "0123456789.Z+-") == ""
	if digits && len(arg[i+1:]) >= 2 && strings.Contains(arg[:i], "T") {
		return arg, ""
	}
	return arg[:i], arg[i+1:]
}
