# A repository with branches, a merge, packing and a clone; checked in the end.
set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
git init -q -b main "$1/first" && cd "$1/first"
for n in $(seq 1 30); do
    seq 1 $((n * 20)) >file$((n % 7))
    git add . && git commit -q -m "commit $n"
done
git switch -q -c side HEAD~10
echo side >side && git add . && git commit -q -m side
git switch -q main && git merge -q -m merge side
git gc -q --aggressive
git clone -q . ../second && cd ../second
git fsck --strict --full 2>&1
git log --oneline | wc -l
git rev-parse HEAD
git worktree add -q ../third HEAD~3 && git -C ../third status --short | wc -l
git bundle create -q ../all.bundle --all && git bundle verify -q ../all.bundle && echo verified
