# Compiles the programs: for .NET Core against its own assemblies, and for Mono.
set -e
framework=$(echo /srv/dotnet/shared/Microsoft.NETCore.App/*)
references=
for assembly in "$framework"/System*.dll "$framework"/netstandard.dll "$framework"/mscorlib.dll "$framework"/Microsoft.Win32.Primitives.dll; do
    references="$references -r:$assembly"
done
version=$(basename "$framework")
for program in Rows Jobs; do
    mcs -optimize -out:$program.exe $program.cs
    mcs -optimize -nostdlib -noconfig $references -out:$program.dll $program.cs
    cat >$program.runtimeconfig.json <<END
{ "runtimeOptions": { "framework": { "name": "Microsoft.NETCore.App", "version": "$version" },
  "configProperties": { "System.Globalization.Invariant": true } } }
END
done
