package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multicodec"
	mh "github.com/multiformats/go-multihash"
	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/store"
)

func blockCommand() *cli.Command {
	return &cli.Command{
		Name:  "block",
		Usage: "work with single blocks",
		Description: "A block is immutable bytes named by a hash.\n\n" +
			example("cafs block put file", "cafs block get bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy", "cafs block ls | wc -l"),
		Subcommands: []*cli.Command{
			blockSub("get", "print a block's bytes", "CID", runBlockGet),
			{
				Name:      "put",
				Usage:     "store a block and print its CID",
				ArgsUsage: "FILE|-",
				Description: "Nothing keeps it from being garbage until it is pinned or part of something that is kept.\n\n" +
					example("printf hello | cafs block put -", "cafs block put --codec dag-pb node.bin"),
				Flags: []cli.Flag{
					repoFlag(),
					&cli.StringFlag{Name: "codec", Usage: "what the CID says the bytes are", Value: "raw"},
					&cli.StringFlag{Name: "hash", Usage: "the hash function", Value: "sha2-256"},
				},
				Action: func(c *cli.Context) error {
					if c.NArg() != 1 {
						return usagef("block put takes one file, or '-' for stdin; see 'cafs block put --help'")
					}
					r, err := repoPath(c)
					if err != nil {
						return err
					}
					return runBlockPut(c.Context, r, c.Args().First(), c.String("codec"), c.String("hash"))
				},
			},
			blockSub("stat", "print a block's CID and size in bytes", "CID", runBlockStat),
			{
				Name:        "ls",
				Usage:       "list all blocks, in no order",
				Description: "Codecs are not stored with blocks, so the CIDs are raw ones.\n\n" + example("cafs block ls --size"),
				Flags:       []cli.Flag{repoFlag(), &cli.BoolFlag{Name: "size", Aliases: []string{"s"}, Usage: "sizes in bytes too"}},
				Action: func(c *cli.Context) error {
					r, err := repoPath(c)
					if err != nil {
						return err
					}
					return runBlockLs(c.Context, r, c.Bool("size"))
				},
			},
		},
	}
}

// blockSub is a subcommand that takes one CID.
func blockSub(name, usage, args string, run func(context.Context, *session, cid.Cid) error) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: args,
		Description: example("cafs block " + name + " bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"),
		Flags:       []cli.Flag{repoFlag()},
		Action: func(c *cli.Context) (err error) {
			if c.NArg() != 1 {
				return usagef("block %s takes one CID; see 'cafs block %s --help'", name, name)
			}
			k, err := cid.Decode(c.Args().First())
			if err != nil {
				return usagef("%q is no CID: %v", c.Args().First(), err)
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			s, err := open(c.Context, r, "block "+name, nil)
			if err != nil {
				return err
			}
			defer s.closing(&err)
			if err := run(c.Context, s, k); err != nil {
				return s.explain(k.String(), err)
			}
			return nil
		},
	}
}

func runBlockGet(ctx context.Context, s *session, k cid.Cid) error {
	b, err := s.blocks.Get(ctx, k)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}

func runBlockStat(ctx context.Context, s *session, k cid.Cid) error {
	n, err := s.blocks.Size(ctx, k)
	if err != nil {
		return err
	}
	_, err = fmt.Println(k, n)
	return err
}

func runBlockPut(ctx context.Context, repository, path, codec, hash string) (err error) {
	var code, fn multicodec.Code
	if err := code.Set(codec); err != nil {
		return usagef("--codec %q is none: %v", codec, err)
	}
	if err := fn.Set(hash); err != nil {
		return usagef("--hash %q is none: %v", hash, err)
	}
	data, err := readBlock(path)
	if err != nil {
		return err
	}
	sum, err := mh.Sum(data, uint64(fn), -1)
	if err != nil || fn == multicodec.Identity {
		return usagef("--hash %q cannot be used: %v", hash, errors.Join(err))
	}
	s, err := open(ctx, repository, "block put", func(o *repo.Options) { o.Create = &repo.Config{} })
	if err != nil {
		return err
	}
	defer s.closing(&err)
	k := cid.NewCidV1(uint64(code), sum)
	if err := s.blocks.Put(ctx, k, data); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return err
	}
	_, err = fmt.Println(k)
	return err
}

// readBlock reads a file that is to be one block.
func readBlock(path string) ([]byte, error) {
	in := os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, store.MaxBlock+1))
	if err == nil && len(data) > store.MaxBlock {
		err = fmt.Errorf("%s: over the %s that a block can have", path, size(store.MaxBlock))
		err = repo.Hint(err, "'cafs add' cuts files into blocks")
	}
	return data, err
}

func runBlockLs(ctx context.Context, repository string, sizes bool) (err error) {
	s, err := open(ctx, repository, "block ls", nil)
	if err != nil {
		return err
	}
	defer s.closing(&err)
	out := bufio.NewWriter(os.Stdout)
	for e, err := range s.blocks.All(ctx) {
		if err != nil {
			return err
		}
		if sizes {
			_, err = fmt.Fprintln(out, cid.NewCidV1(cid.Raw, e.Hash), e.Size)
		} else {
			_, err = fmt.Fprintln(out, cid.NewCidV1(cid.Raw, e.Hash))
		}
		if err != nil {
			return err
		}
	}
	return out.Flush()
}
